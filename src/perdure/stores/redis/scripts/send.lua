-- Put mail into mailboxes, each message once. grace, mail
local answers = {}
for n, one in ipairs(given[2]) do
  answers[n] = send(one, now + given[1])
end
return answers
