"""The limits of the hardware as rules, one file per concern; `verify` has the table of them."""
