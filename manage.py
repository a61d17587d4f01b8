#!/usr/bin/env python
"""Django's command line for Berth."""

import sys

from portal.command_line import main

if __name__ == "__main__":
    main(sys.argv)
