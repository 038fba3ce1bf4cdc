"""Where results lie: the home, the lake with its pointers and leases, and the published warehouse."""
