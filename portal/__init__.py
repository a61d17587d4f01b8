"""The portal: Django apps that own teams, fleet, leases and money."""
