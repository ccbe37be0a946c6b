"""What the hardware would not do, one file per concern; `verify` has the table of all rules."""
