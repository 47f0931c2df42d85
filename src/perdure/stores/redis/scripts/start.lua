-- Create executions, each once. grace, starts
local answers = {}
for n, one in ipairs(given[2]) do
  answers[n] = start(one, now + given[1])
end
return answers
