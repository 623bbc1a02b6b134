package Canon;

# The encoding of bodies by their meaning once more, written from its
# description and for clarity, not for speed; and a way to ask the module's own
# code.  What is malformed is undef.

use strict;
use warnings;
no warnings 'recursion';

use Digest::SHA qw(sha256 sha256_hex);
use Exporter 'import';
use IPC::Open2;

our @EXPORT_OK = qw(FORM JSON MULTIPART TEXT FOLD tool ask digest_of field_of
                    expected form json multipart text is_utf8 group brackets
                    small check done note);

use constant { FORM => 2, JSON => 4, MULTIPART => 8, TEXT => 16, FOLD => 128 };


# -- the tool ----------------------------------------------------------------

my ($from, $to);

sub tool {
    open2($from, $to, @_);
    binmode $_ for $from, $to;
}


sub ask {
    my ($op, $flags, $names, $arg, $data) = @_;

    print $to pack('a C N/a N/a N/a', $op, $flags, $names, $arg, $data);
    $to->flush;

    my $line = <$from> // die "the tool has died\n";
    chomp $line;

    return undef if $line eq 'declined';
    return '?' if $line eq 'unreadable';
    return $line =~ s/^=// ? $line : die "the tool says: $line\n";
}


# digest_of(kind and flags, data, boundary => ..., ignore => [...])

sub digest_of {
    my ($flags, $data, %o) = @_;

    return ask('d', $flags, join('', map { "$_\n" } @{$o{ignore} // []}),
               $o{boundary} // '', $data);
}


# a value, undef, or '?' if nobody can tell

sub field_of {
    my ($flags, $name, $data, $boundary) = @_;
    my $hex = ask('f', $flags, $boundary // '', $name, $data);

    return defined $hex && $hex ne '?' ? pack('H*', $hex) : $hex;
}


# what digest_of() should have said

sub expected {
    my ($flags, $data, %o) = @_;
    my $kind = $flags & 0x1e;
    my $fold = $flags & FOLD;
    my @ignore = @{$o{ignore} // []};

    my $code = $kind == FORM ? form($data, $fold, @ignore)
             : $kind == JSON ? json($data, @ignore)
             : $kind == TEXT ? text($data)
             : multipart($data, $o{boundary}, $fold, @ignore);

    return defined $code ? sha256_hex("\x02B$code") : undef;
}


# -- results -----------------------------------------------------------------

my ($checks, $failed) = (0, 0);

sub note { print "# @_\n" }

sub check {
    my ($ok, $name, @more) = @_;

    $checks++;
    return 1 if $ok;

    if (++$failed <= 10) {
        print "not ok $checks - $name\n";
        note(substr($_, 0, 200)) for map { split /\n/, $_ // 'none' } @more;
    }

    return 0;
}

sub done {
    if ($failed || !$checks) {
        print "not ok - $failed of $checks checks failed\n1..1\n";
        exit 1;
    }

    print "ok 1 - @_: $checks checks\n1..1\n";
}


# -- the encoding ------------------------------------------------------------

sub lengthy { pack('w', length $_[0]) . $_[0] }

sub field { pack('Q>', length $_[0]) . $_[0] }

sub small { $_[0] =~ tr/A-Z/a-z/r }

# what of a name counts for its place among others

sub group {
    my $name = shift;

    $name =~ s/^ +//;
    $name =~ s/[\0 .\[_].*//s;

    return small($name);
}

sub by_group {
    return sort { group($a->[0]) cmp group($b->[0]) || $a->[2] <=> $b->[2] } @_;
}


my $space = join '|', '[\t-\r ]', "\xc2[\x85\xa0]", "\xe1\x9a\x80",
                      "\xe2\x80[\x80-\x8a\xa8\xa9\xaf]", "\xe2\x81\x9f",
                      "\xe3\x80\x80";

sub folded {
    my $text = shift;

    $text =~ s/(?:$space)+/ /g;
    $text =~ s/^ | $//g;

    return $text;
}


sub text { 'T' . folded($_[0]) }


sub form {
    my ($data, $fold, @ignore) = @_;
    my %ignore = map { $_ => 1 } grep { !m{^/} } @ignore;
    my @fields;
    my ($n, $ordered) = (0, 0);

    for my $pair (split /&/, $data) {
        next if $pair eq '';

        my ($name, $value) = split /=/, $pair, 2;

        for ($name //= '', $value //= '') {
            return undef if /%(?![0-9a-fA-F]{2})/;

            tr/+/ /;
            s/%(..)/chr hex $1/ge;
        }

        $value = folded($value) if $fold;

        next if $name eq '' && $value eq '';
        return undef if ++$n > 32768;

        next if $ignore{$name};
        $ordered = 1 if $name =~ /^\[.*\]/s;
        push @fields, [$name, $value, scalar @fields];
    }

    return join '', 'F', map { lengthy($_->[0]) . lengthy($_->[1]) }
                         $ordered ? @fields : by_group(@fields);
}


# of a part

sub media_type {
    my ($type, @params) =
        map { s/^[ \t]+|[ \t]+\z//gr }
        $_[0] =~ /\G((?:[^;"]|"(?:[^"\\]|\\.)*(?:"|\\?\z))*)(?:;|\z)/g;
    my $code = field(lc($type // ''));

    for (@params) {
        my ($name, $value) = map { s/^[ \t]+|[ \t]+\z//gr } split /=/, $_, 2;

        next if !length || lc $name eq 'charset' && lc($value // '') eq 'utf-8';
        $code .= ';' . field(lc $name) . field($value // '');
    }

    return "$code.";
}


sub multipart {
    my ($data, $boundary, $fold, @ignore) = @_;
    my %ignore = map { $_ => 1 } grep { !m{^/} } @ignore;
    my ($ambiguous, $limits, $names, @parts) = (0, 0, 0);

    $data = "\r\n$data" if $data =~ /^-/;

    my ($before, @rest) = split /\r\n--\Q$boundary\E/, $data, -1;

    return undef if !@rest || $before ne ''
                    || pop(@rest) !~ /^--[ \t\r\n]*\z/;
    return undef if @rest > 4096;

    for (@rest) {
        my ($others, %seen, %part) = ('');
        my ($head, $bytes) = /^[ \t]*\r\n((?:[^\n]+\n)*?)\r\n(.*)\z/s
            or return undef;

        return undef if length $head > 4094;

        for (split /(?<=\n)/, $head) {
            my ($name, $value) = /^([^\s:](?:[^:\0\r\n]*[^\s:\0])?):[ \t]*
                                    ([^\0\r\n]*)\r\n\z/x
                or return undef;

            my $as_it_is = $name;
            $name = lc $name;

            return undef if $name =~ /^content-(?:type|disposition)$/
                            && defined $seen{$name};
            return undef if $name eq 'content-transfer-encoding'
                            && $value !~ /^(?:binary|[78]bit)$/i;
            $seen{$name} = $value;

            if ($name eq 'content-disposition') {
                $others .= disposition($value, \%part) // return undef;

            } elsif ($name ne 'content-type') {
                $others .= 'h' . lengthy(lower($as_it_is)) . lengthy($value);
            }
        }

        my ($name, $file, $extended) = @part{'name', 'filename', 'filename*'};

        return undef if !defined $name;
        $part{ambiguous} = 1 if defined $file && !brackets($name);
        return undef if $names > 131072;
        next if $ignore{$name} && !$part{ambiguous};
        $names += 4 + length group($name);
        $ambiguous |= $part{ambiguous};

        my $type = $seen{'content-type'};

        $bytes = folded($bytes)
            if $fold && !defined $file && !defined $extended
               && (!defined $type
                   || $type =~ m{^text/plain[ \t]*(?:;|\z)}i
                      && $type !~ /charset="?(?!utf-?8(?:[" \t;]|\z))
                                   (?:utf|ucs)/xi);

        my $code = "\x02P" . field($name);

        $code .= 'f' . field($file) if defined $file;
        $code .= 'x' . field($extended) if defined $extended;
        $code .= 't' . media_type($type) if defined $type;
        $code .= 'o' . sha256("O$others") if $others ne '';

        $limits++ if !defined $file && lc $name eq 'max_file_size';
        $code .= 'm' . pack('w', $limits) if defined $file && $limits;

        push @parts, [$name, sha256("$code.$bytes"), scalar @parts,
                      field("$head\r\n")];
    }

    return 'O' . sha256(join '', map { $_->[3] . $_->[1] } @parts)
        if $ambiguous;

    return join '', 'M', map { $_->[1] } by_group(@parts);
}

sub brackets { $_[0] =~ /^[^\[\]]*(?:\[[^\[\]]*\])*\z/ }

sub lower { length $_[0] > 64 ? $_[0] : lc $_[0] }

# its parameters, into what is known of the part; what is made of the others

sub disposition {
    my ($value, $part) = @_;
    my ($params) = $value =~ /^form-data[ \t]*(;.*)?$/i or return undef;
    my $others = '';

    $part->{ambiguous} = 0;

    while (($params //= '') =~ /\G[; \t]*([^=;]*?)[ \t]*
                     (?:=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^";][^;]*|))[ \t]*)?
                     (?=;|\z)/gcx)
    {
        my ($name, $value) = (lower($1), $2 // $3);

        last if $1 eq '' && !defined $value && $& !~ /=/;

        $value =~ s/[ \t]+\z// if defined $value && !defined $2;

        $part->{ambiguous} |= $name =~ s/^name\*.*/name/s;

        if ($name !~ /^(?:name|filename\*?)$/) {
            next if $name eq '' && ($value // '') eq '';
            $others .= 'p' . lengthy($name) . lengthy($value // '');
            next;
        }

        return undef unless defined $value;

        $part->{ambiguous} |= defined $part->{$name}
                              || $name eq 'name' && $value =~ /^'|\\/;
        $part->{$name} //= $value;
    }

    return undef if substr($params, pos($params) // 0) !~ /^[; \t]*\z/;
    return $others;
}


# -- JSON --------------------------------------------------------------------

sub is_utf8 {
    $_[0] =~ /^(?: [\0-\x7f]++ | [\xc2-\xdf][\x80-\xbf]
               | \xe0[\xa0-\xbf][\x80-\xbf]
               | [\xe1-\xec\xee\xef][\x80-\xbf]{2} | \xed[\x80-\x9f][\x80-\xbf]
               | \xf0[\x90-\xbf][\x80-\xbf]{2} | [\xf1-\xf3][\x80-\xbf]{3}
               | \xf4[\x80-\x8f][\x80-\xbf]{2} )*+\z/x
}


my %escape = (b => "\b", f => "\f", n => "\n", r => "\r", t => "\t",
              '"' => '"', '\\' => '\\', '/' => '/');

sub utf8 {
    my $c = chr shift;

    utf8::encode($c);
    return $c;
}

sub json_string {
    my $text = shift;

    die unless is_utf8($text);

    $text =~ s{\\(?:u([dD][89abAB]..)\\u([dD][c-fC-F]..)|u(....)|(.))}
              { defined $1 ? utf8(0x10000 + (hex($1) - 0xd800) * 0x400
                                  + hex($2) - 0xdc00)
                : !defined $3 ? $escape{$4}
                : hex($3) < 0xd800 || hex($3) > 0xdfff ? utf8(hex $3)
                # a surrogate alone, as UTF-8 would have it
                : pack 'C3', 0xe0 | hex($3) >> 12, 0x80 | hex($3) >> 6 & 0x3f,
                             0x80 | hex($3) & 0x3f }gse;

    return $text;
}

sub json_number {
    my ($sign, $whole, $fraction, $exponent) = @_;

    die if length($exponent =~ s/^[+-]?0*//r) > 18;

    my $digits = ($whole . $fraction) =~ s/^0+//r;
    my $power = $exponent - length $fraction;

    $power += length $1 if $digits =~ s/(0+)\z//;

    return $digits eq '' ? '0' : $sign . $digits . ($power ? "e$power" : '');
}


# pointers: those that begin as the way to here does, as lists of tokens

my ($values, $room);
our $twice;      # some name stands twice in an object

sub json_value {
    my ($depth, @pointers) = @_;
    my $left_out = sub {
        my $token = shift;
        my @next = map { [@$_[1 .. $#$_]] }
                   grep { $_->[0] eq $token } @pointers;

        return ((grep { !@$_ } @next) ? 1 : 0, @next);
    };

    m/\G[ \t\r\n]*/gc;
    die if ++$values > 65536;

    if (m/\G"((?:[^\0-\x1f"\\]++|\\(?:["\\\/bfnrt]|u[0-9a-fA-F]{4}))*+)"/gc) {
        return '"' . lengthy(json_string($1));
    }

    if (m/\G(-?)(0|[1-9][0-9]*+)(?:\.([0-9]++))?(?:[eE]([+-]?[0-9]++))?/gc) {
        return '#' . lengthy(json_number($1, $2, $3 // '', $4 // '0'));
    }

    return uc substr $1, 0, 1 if m/\G(null|true|false)/gc;

    die if $depth == 256;

    if (m/\G\[[ \t\r\n]*/gc) {
        my $code = '[';
        my $n = 0;

        until (m/\G[ \t\r\n]*\]/gc) {
            die if $n && !m/\G[ \t\r\n]*,/gc;

            my ($out, @next) = $left_out->($n++);
            my $value = json_value($depth + 1, $out ? () : @next);

            $code .= $value unless $out;
        }

        return "$code]";
    }

    if (m/\G\{[ \t\r\n]*/gc) {
        my (@members, %seen);
        my $n = 0;

        until (m/\G[ \t\r\n]*\}/gc) {
            die if $n++ && !m/\G[ \t\r\n]*,/gc;

            m/\G[ \t\r\n]*(?=")/gc or die;
            my ($name) = json_value($depth) =~ /^"(.*)\z/s;
            $values--;
            m/\G[ \t\r\n]*:/gc or die;

            $name = unpack 'w/a', $name;

            my ($out, @next) = $left_out->($name);
            my $value = json_value($depth + 1, $out ? () : @next);

            # in whatever letters, also where it is left out

            my $folded = $name =~ s/\xc5\xbf/s/gr =~ s/\xe2\x84\xaa/k/gr;

            $twice = 1, die if $seen{small($folded)}++;
            die if $name =~ /[\x80-\xff]/ && length $name > $room;
            $room -= length $folded if $folded ne $name;

            push @members, [$name, $value] unless $out;
        }

        die if $n > 16384;

        return join '', '{', (map { ':' . lengthy($_->[0]) . $_->[1] }
                              sort { small($a->[0]) cmp small($b->[0]) }
                              @members), '}';
    }

    die;
}

sub json {
    my ($data, @ignore) = @_;
    my $object = $data =~ /^[ \t\r\n]*\{/;

    my @pointers = map {
        m{^/} ? [map { s/~1/\//gr =~ s/~0/~/gr } m{/([^/]*)}g]
              : $object ? [$_] : ()
    } @ignore;

    local $_ = $data;
    pos = 0;

    my $code = eval {
        local $SIG{__DIE__};
        $values = $twice = 0;
        $room = length $data < 65536 ? length $data : 65536;

        my $value = json_value(0, @pointers);
        m/\G[ \t\r\n]*\z/gc or die;
        "J$value";
    };

    return $code;
}

1;
