"""What portal and agent share: messages, codec, the signed text, board facts. Standard library only."""
