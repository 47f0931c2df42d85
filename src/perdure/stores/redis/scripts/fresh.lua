-- Those that would count if they had begun, and have not. keys
local found = {}
for _, key in ipairs(given[1]) do
  local x = load(key)
  if x and counts(x) and not begun(x) then
    found[#found + 1] = key
  end
end
return found
