"""The walls. An engine puts the guest agent behind one and hands back a byte stream."""
