"""What faults of cards mean and what somebody has to do about them."""
