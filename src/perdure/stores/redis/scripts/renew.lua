-- Extend leases. lease, holds
local kept = {}
for _, one in ipairs(given[2]) do
  local x = load(one[1])
  if x and x.hold and x.tok == one[2] then
    x.due = now + given[1]
    save(x)
    kept[#kept + 1] = one[1]
  end
end
return kept
