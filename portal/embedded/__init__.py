"""The supervisor behind `make up`: the engines of production, in one terminal, from one folder."""
