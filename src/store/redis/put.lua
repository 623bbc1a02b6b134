#!lua flags=allow-oom
-- PUT: what a zone knows of its own claim: that it is still pending, or its
-- outcome.  It is written even if the memory is full.
--
--     ARGV     1 the head
--              2 the response
--              3 the lease
--              4 how long ago it was claimed, or the outcome recorded
--              5 how long the token is still bound
--              6 how long the key is kept
--              7 "k": this server has acknowledged the claim
--              8 the command to publish with
--              9 not after

clock()

local is, _, answer = read('GETRANGE', key, 0, length - 1)

if answer then
    return answer
end

if too_late(ARGV[9]) then
    return { 'L', msec }
end

local known = unpacked(ARGV[1])

-- The answer "S" makes the zone forget its outcome.  A failover must not bring
-- back its claim alone: so what is here is written again, as WAIT counts writes.

local function stale()
    if known.state ~= 'P' then
        redis.call('SET', key, redis.call('GET', key), 'keepttl')
    end

    return { 'S', msec }
end

if is then
    local mine = is.instance == known.instance

    if is.state == 'F' then

        if mine and is.sequence >= known.sequence then

            if known.state == 'P' then
                redis.call('PEXPIRE', key, math.max(ARGV[3], fence_keep))
            end

            return stale()
        end

    elseif not mine or is.sequence > known.sequence then
        return stale()

    elseif known.state ~= 'D' and known.state ~= 'N' then

        -- The call comes late, or a memory that was alone did not know of this
        -- record.  A claim that does not know of a doubt would make the token
        -- fresh with its release.  A doubt of this very claim stays, too: the
        -- claim's owner may have died, and what is pending its instance takes.

        if is.state == 'D' or is.state == 'N'
           or is.state == 'U' and known.state == 'P'
              and (is.sequence == known.sequence or known.status == 0)
        then
            if is.sequence == known.sequence and is.state == 'U' then
                return { 'A', msec }
            end

            return stale()
        end
    end

elseif remains and remains.instance == known.instance
       and remains.sequence >= known.sequence
       and (remains.status ~= 0 or known.state == 'P')
then
    -- an operator forgot the outcome, or the claim was released since

    return { remains.status ~= 0 and 'A' or 'S', msec }
end

known.lease = (known.state == 'P') and now + ARGV[3] or 0
known.recorded, known.ends = now - ARGV[4], now + ARGV[5]
known.fence = math.max(known.fence, fence)

redis.call('SET', key, packed(known) .. ARGV[2], 'PX', ARGV[6])

if known.state ~= 'P' then
    redis.pcall(ARGV[8], key, '')
end

-- "T": the server has lost what it had acknowledged, unless that just ended

return { (not is and ARGV[7] == 'k' and (known.state == 'P' or known.ends > now + 1))
         and 'T' or 'O', msec }
