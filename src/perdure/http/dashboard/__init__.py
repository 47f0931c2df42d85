"""The dashboard: a page for people, in a browser, that calls the API as anybody else does."""
