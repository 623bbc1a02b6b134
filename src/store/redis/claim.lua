-- ASK: check, bind and claim in one step.
--
--     KEYS[1]  the token's key
--     ARGV     1 the head of the claim, 2 the sequence below which the claims of
--              its instance are nobody's, 3 for how long it is leased, 4 how
--              long it was asked for before, 5 before when its outcome will
--              not end, 6 for how long the key is kept, 7 "r" takes over what
--              is in doubt, "o" not what is absent, 8 how to publish, 9 not
--              after
--
-- What is decided is written at once, and last.  A claim is answered with its
-- fence.

clock()

local is, bytes, answer = read('GET', key)

if answer then
    return answer
end

local claim = unpacked(ARGV[1])
local take = not is or is.state == 'F'
local doubt = is and is.state == 'U'
local taken = is and is.state == 'P' and is.status ~= 0

if take and string.find(ARGV[7], 'o') then
    return { 'A', stamp }
end

if is and is.state == 'P' then

    if is.instance ~= claim.instance then
        doubt = is.lease <= now

    elseif is.sequence < struct.unpack('>I8', ARGV[2])
           and is.sequence ~= claim.sequence
    then
        doubt = true

    elseif is.sequence <= claim.sequence then

        -- sent once more, or what is left of one that was given up; what comes
        -- late itself finds that of a newer one, which is its owner's

        if taken and is.sequence ~= claim.sequence then
            doubt = true

        elseif string.find(ARGV[7], 'o') and not taken then
            return { 'A', stamp }

        else
            take = true
        end
    end
end

if doubt and string.find(ARGV[7], 'r')
   and is.fingerprint == claim.fingerprint
   and (is.identity == claim.identity
        or is.identity == string.rep('\0', #is.identity))
then
    -- it was its own, and comes late

    if is.instance == claim.instance and is.sequence >= claim.sequence then
        return { 'X', stamp }
    end

    take = true
end

if take then
    if too_late(ARGV[9]) then
        return { 'L', stamp }
    end

    -- the same claim sent twice is written twice, as WAIT counts writes, and has
    -- the same fence

    if is and is.state == 'P' and is.instance == claim.instance
       and is.sequence == claim.sequence
    then
        claim.fence = is.fence

    else
        claim.fence = math.max(fence + 1, micros)
    end

    claim.lease, claim.recorded = now + ARGV[3], now - ARGV[4]
    claim.ends = now + ARGV[5]
    claim.status = (doubt or taken) and 1 or 0

    redis.call('SET', key, packed(claim), 'PX', ARGV[6])

    return { (doubt or taken) and 'D' or 'C', stamp,
             string.format('%.0f', claim.fence) }
end

-- it is in doubt, whether or not there is room to say so

if doubt and is.state == 'P' then
    if not redis.pcall(in_doubt(is)).err then
        redis.pcall(ARGV[8], key, '')
    end

    bytes = packed(is)
end

return { 'B', stamp, bytes }
