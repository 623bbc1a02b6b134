-- STAMP: which store this server has, and how far it has come.
--
--     KEYS[1]  the stamp of the zone, or of a part of a cluster
--     ARGV     1 the stamp's beginning: its format, the name of the digest key,
--                and the version of fingerprints
--              2 the known identity, or ""
--              3 the last acknowledged beat, or 0
--              4 the instance that asks
--              5 "a": an operator agrees to this store, "w": write a beat
--                anyway
--
-- A stamp is text: its beginning, a random identity, its beat, this server's
-- time when that was written, and the earlier identities that it replaced as an
-- operator agreed, the latest first.  The beat is this server's time, too, but
-- it never goes back, and goes on if the clock is set back.  Whoever remembers
-- an identity must find it, and no beat that is older than an acknowledged one:
-- else the server has forgotten.  Only an instance that knows no identity makes
-- a stamp.
--
-- The answer: "O": it is the known stamp, or one that replaced it; "A": an
-- operator has agreed to it; "N": there is none, "S": it is another one, "P":
-- the server has forgotten, "K": another digest key, format or version.  Then
-- the known identity and beat, as asked; the identity and the beat found; and
-- the beat now, or 0.

clock()

local head, known, least = ARGV[1], ARGV[2], tonumber(ARGV[3])
local bytes = redis.pcall('GET', key)

if type(bytes) == 'table' and not string.find(bytes.err, '^WRONGTYPE') then
    return bytes
end

local id, was, at, olds

if bytes then
    if type(bytes) == 'string' and string.sub(bytes, 1, #head) == head then
        id, was, at, olds = string.match(string.sub(bytes, #head + 1),
                                         '^ (%x+) (%d+) (%d+)([ %x]*)$')
    end

    if not id then
        return { 'K', msec, known, ARGV[3], '', '0', '0' }
    end
end

was, at, olds = tonumber(was or 0), tonumber(at or now), olds or ''

local follows = string.find(olds, ' ' .. known, 1, true)
local code = 'O'

if known ~= '' then
    if not id then
        code = 'N'

    elseif id ~= known then
        code = follows and 'O' or 'S'

    elseif was < least - 2000 then
        code = 'P'
    end
end

if code ~= 'O' and ARGV[5] ~= 'a' then
    return { code, msec, known, ARGV[3], id or '', string.format('%.0f', was),
             '0' }
end

local write = not id or ARGV[5] == 'w'

if code ~= 'O' then
    olds = string.sub(' ' .. known .. olds, 1, 4 * 17)
    id = (code == 'S') and id or nil
    code, write = 'A', true

elseif id == known then
    write = write or was < least
end

if not id then
    id = string.sub(redis.sha1hex(ARGV[4] .. head .. msec .. known), 1, 16)
end

local passed = now - at
local beat = math.max(now, was + math.min(math.max(passed, 0), 10000))

if id == known then
    beat = math.max(beat, least)
end

if write or passed >= 500 or passed < 0 then
    local set = redis.pcall('SET', key, head .. ' ' .. id
                            .. string.format(' %.0f %.0f', beat, now) .. olds)

    if set.err then
        if write or not string.find(set.err, '^OOM')
                    and not string.find(set.err, '^MISCONF')
                    and not string.find(set.err, '^NOREPLICAS')
        then
            return set
        end

        beat = was
    end

else
    beat = was
end

return { code, msec, known, ARGV[3], id, string.format('%.0f', was),
         string.format('%.0f', beat) }
