"""What runs inside a lease, reached from the portal: streams on a second socket, and the shells they end in."""
