"""What past requests say about those to come: how long they run, what they look like, how far to trust estimates."""
