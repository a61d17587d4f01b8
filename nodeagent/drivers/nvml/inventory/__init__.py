"""What each device is, where its nodes are, and which sharing modes it can have on this host."""
