"""Distributed engines that exist already: each grants devices on some machine and runs one command there."""
