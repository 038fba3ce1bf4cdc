"""What people do with a home besides computing: make it, look after it, explain it."""
