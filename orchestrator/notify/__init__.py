"""Telling somebody who is not there: hooks and webhooks, in processes of their own."""
