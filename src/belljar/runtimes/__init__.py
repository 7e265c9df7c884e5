"""What runs inside a sandbox: the languages, and the guest agent that starts them."""
