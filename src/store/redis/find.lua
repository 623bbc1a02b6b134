-- FIND: looks, and changes nothing.

clock()

local is, bytes, answer = read('GET', key)

if answer then
    return answer
end

if not is or is.state == 'F' then
    return { 'A', stamp }
end

return { 'B', stamp, bytes }
