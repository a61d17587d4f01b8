"""The connection to the portal: who this node is, where the portal is, and what is said."""
