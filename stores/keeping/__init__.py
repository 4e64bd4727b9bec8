"""What is done to a whole log, rather than to one of its streams at a time. Read `refold.stores.event_store` first."""
