-- What time it is.
return text(now)
