"""Rules of operations that are no chains, by family: `RULES` and `EPILOGUES` have all of them."""
