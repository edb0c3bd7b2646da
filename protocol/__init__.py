"""Values and wire format shared by the coordinator and its workers.

Runs unchanged in the coordinator's interpreter and in every engine's
interpreter, so it is limited to Python 3.10 syntax and imports only the
standard library, msgpack and msgspec (zmq in `channel` alone).
"""

#: Raised whenever a peer built from the previous number would misread a message.
PROTOCOL_VERSION = 3
