"""Several servers of one model behind one address, each in processes of its own."""
