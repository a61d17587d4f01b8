"""What ended requests say about those that have not ended: how long, and how far to trust an estimate."""
