"""The way from a person to what runs in a lease: tickets, and a process of its own that joins both ends."""
