"""Events of devices, and what they say of their health."""
