"""One pool for all processes of a user on a machine: a server owns the memory, clients map and read it."""
