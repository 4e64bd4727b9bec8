"""What belongs to a session. Read `belongings` first."""
