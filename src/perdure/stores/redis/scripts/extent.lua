-- How many executions of a workflow, and how many rows of their logs. tenant, workflow
return {call('ZCARD', P .. 'by:' .. given[1] .. '/w:' .. given[2]), call('HGET', P .. 'rows:' .. given[1], given[2])}
