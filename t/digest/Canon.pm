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
                    expected form json multipart text is_utf8 check done note);

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

sub by_name { sort { $a->[0] cmp $b->[0] || $a->[2] <=> $b->[2] } @_ }

# but for names with a bracket, whose order among each other counts

sub by_plain_name {
    return by_name(grep { $_->[0] !~ /\[/ } @_), grep { $_->[0] =~ /\[/ } @_;
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
    my $n = 0;

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

        push @fields, [$name, $value, scalar @fields] unless $ignore{$name};
    }

    return join '', 'F', map { lengthy($_->[0]) . lengthy($_->[1]) }
                         by_plain_name(@fields);
}


sub media_type {
    my ($type, @params) =
        map { s/^[ \t]+|[ \t]+\z//gr }
        $_[0] =~ /\G((?:[^;"]|"(?:[^"\\]|\\.)*(?:"|\\?\z))*)(?:;|\z)/g;
    my $code = field(lc($type // ''));

    for (@params) {
        my ($name, $value) = map { s/^[ \t]+|[ \t]+\z//gr } split /=/, $_, 2;

        next if !length || lc $name eq 'charset';
        $code .= ';' . field(lc $name) . field($value // '');
    }

    return "$code.";
}


sub multipart {
    my ($data, $boundary, $fold, @ignore) = @_;
    my %ignore = map { $_ => 1 } grep { !m{^/} } @ignore;
    my @parts;

    $data = "\r\n$data" if $data =~ /^-/;

    my ($before, @rest) = split /\r\n--\Q$boundary\E/, $data, -1;

    return undef if !@rest || $before ne ''
                    || pop(@rest) !~ /^--[ \t\r\n]*\z/;
    return undef if @rest > 4096;

    for (@rest) {
        my %seen;
        my ($head, $bytes) = /^[ \t]*\r\n((?:[^\n]+\n)*?)\r\n(.*)\z/s
            or return undef;

        return undef if length $head > 4094;

        for (split /(?<=\n)/, $head) {
            my ($name, $value) = /^([^\s:](?:[^:\0\r\n]*[^\s:\0])?):[ \t]*
                                    ([^\0\r\n]*)\r\n\z/x
                or return undef;

            $name = lc $name;

            return undef if $name =~ /^content-(?:type|disposition)$/
                            && defined $seen{$name};
            return undef if $name eq 'content-transfer-encoding'
                            && $value !~ /^(?:binary|[78]bit)$/i;
            $seen{$name} = $value;
        }

        my ($disposition, $params) =
            ($seen{'content-disposition'} // '') =~ /^form-data[ \t]*(;.*)?$/i
            or return undef;

        $params = $disposition;
        my %param;

        while (($params //= '') =~ /\G[; \t]*([^=;]+?)[ \t]*
                         (?:=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^";][^;]*|))[ \t]*)?
                         (?=;|\z)/gcx)
        {
            my ($name, $quoted, $token) = (lc $1, $2, $3);

            next unless $name =~ /^(?:name|filename\*?)$/;
            return undef if $param{$name} || !defined($quoted // $token);
            $param{$name} = [$quoted // $token =~ s/[ \t]+\z//r];
        }

        return undef if substr($params, pos($params) // 0) !~ /^[; \t]*\z/;
        return undef unless $param{name};

        my $name = $param{name}[0];
        next if $ignore{$name};

        my ($file, $extended) = @param{'filename', 'filename*'};
        my $type = $seen{'content-type'};

        $bytes = folded($bytes)
            if $fold && !$file && !$extended
               && (!defined $type
                   || $type =~ m{^text/plain[ \t]*(?:;|\z)}i
                      && $type !~ /charset="?(?!utf-?8(?:[" \t;]|\z))
                                   (?:utf|ucs)/xi);

        my $code = "\x02P" . field($name);

        $code .= 'f' . field($file->[0]) if $file;
        $code .= 'x' . field($extended->[0]) if $extended;
        $code .= 't' . media_type($type) if defined $type;

        push @parts, [$name, sha256("$code.$bytes"), scalar @parts];
    }

    return join '', 'M', map { $_->[1] } by_plain_name(@parts);
}


# -- JSON --------------------------------------------------------------------

sub is_utf8 {
    $_[0] =~ /^(?: [\0-\x7f] | [\xc2-\xdf][\x80-\xbf]
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

my $values;

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

    if (m/\G"((?:[^\0-\x1f"\\]|\\(?:["\\\/bfnrt]|u[0-9a-fA-F]{4}))*+)"/gc) {
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
        my @members;
        my $n = 0;

        until (m/\G[ \t\r\n]*\}/gc) {
            die if $n++ && !m/\G[ \t\r\n]*,/gc;

            m/\G[ \t\r\n]*(?=")/gc or die;
            my ($name) = json_value($depth) =~ /^"(.*)\z/s;
            $values--;
            m/\G[ \t\r\n]*:/gc or die;

            my ($out, @next) = $left_out->(unpack 'w/a', $name);
            my $value = json_value($depth + 1, $out ? () : @next);

            push @members, [unpack('w/a', $name), $value, $n] unless $out;
        }

        die if @members > 16384;

        return join '', '{', (map { ':' . lengthy($_->[0]) . $_->[1] }
                              by_name(@members)), '}';
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
        $values = 0;

        my $value = json_value(0, @pointers);
        m/\G[ \t\r\n]*\z/gc or die;
        "J$value";
    };

    return $code;
}

1;
