"""One execution on its worker: its log, its replay, the mail it takes in and the rows it writes."""
