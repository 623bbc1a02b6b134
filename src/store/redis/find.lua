-- FIND: looks, and changes nothing.

clock()

local is, bytes, answer = read('GET', key)

if answer then
    return answer
end

return (is and is.state ~= 'F') and { 'B', msec, bytes } or { 'A', msec }
