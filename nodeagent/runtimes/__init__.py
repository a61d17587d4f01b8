"""How a holder gets in: a unit of the host, a container device, or the environment alone."""
