"""What a project is made of: ids, cards, protocol, settings, registry, cells. Reads files, computes nothing."""
