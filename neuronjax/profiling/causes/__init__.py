"""Causes of lost time: rules that look for one of them in a program."""
