"""What engines take and what a platform allows, measured by the runtime's own programs, here or on a phone."""
