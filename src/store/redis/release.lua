#!lua flags=allow-oom
-- RELEASE: ends a claim, or an earlier one that the same instance gave up.  A
-- token that was in doubt before is in doubt again, and stays so if the release
-- is sent twice.
--
--     ARGV     1 the head
--              2 the command to publish with
--              3 "f": it was not in doubt, or an operator has settled it
--                "l": the claim's answer was lost, and no request has the claim.
--                It may have been sent again and executed, so only what is
--                pending is released

clock()

local is, _, answer = read('GETRANGE', key, 0, length - 1)

if answer then
    return answer
end

local claim = unpacked(ARGV[1])

if not is or is.instance ~= claim.instance
   or (is.state ~= 'P' and (is.state ~= 'U' or ARGV[3] == 'l'
                            or is.lease ~= 0 and ARGV[3] ~= 'f'))
   or is.sequence > claim.sequence
   or (is.sequence < claim.sequence and is.state ~= 'P')
then
    return { 'A', msec }
end

if is.state == 'P' and is.status ~= 0
   and not (is.sequence == claim.sequence and ARGV[3] == 'f')
then
    redis.call(in_doubt(is))

else
    redis.call(released(is))
end

redis.pcall(ARGV[2], key, '')

return { 'O', msec }
