"""Actions that workers in any language run: asked for, held, settled."""
