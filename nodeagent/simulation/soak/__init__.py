"""The proof that nothing is disturbed: random goals on a simulated host, with the agent dying at every change."""
