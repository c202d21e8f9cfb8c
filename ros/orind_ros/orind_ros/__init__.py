"""Nodes for the orind daemon."""
