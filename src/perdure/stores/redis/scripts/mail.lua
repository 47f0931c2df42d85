-- The mailboxes of executions. keys
local boxes = {}
for n, key in ipairs(given[1]) do
  boxes[n] = unread(key)
end
return boxes
