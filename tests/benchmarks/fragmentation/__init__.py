"""How much of a card is lost to fragmentation, by allocator (README.md)."""
