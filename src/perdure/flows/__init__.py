"""What authors import: workflows, actions, events."""
