import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.transforms.outbox.EventRouter;
import java.io.FileReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.connect.converters.ByteArrayConverter;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.errors.DataException;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;

/**
 * Runs Debezium's connector and, on each of its records, the outbox event router and the converters as a worker of Kafka
 * Connect does. Prints a line for each record: topic, key, value and headers, as base64, "-" for null,
 * "!" for a value at which the task would end. The argument is a file
 * of properties: engine.* is Debezium's; each NAME.router.*, NAME.key.* and NAME.value.* a way to make records. Ends when its
 * standard input ends.
 */
public class Records {
    record Way(String name, EventRouter<SourceRecord> router, Converter key, Converter value) {}

    private static final SimpleHeaderConverter headers = new SimpleHeaderConverter();
    private static final ByteArrayConverter bytes = new ByteArrayConverter();

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        Properties all = new Properties();
        try (FileReader file = new FileReader(args[0])) {
            all.load(file);
        }
        headers.configure(Map.of());
        bytes.configure(Map.of(), false);
        List<Way> ways = new ArrayList<>();
        TreeSet<String> names = new TreeSet<>();
        all.stringPropertyNames().forEach(name -> names.add(name.substring(0, name.indexOf('.'))));
        for (String name : names) {
            if (!name.equals("engine")) {
                EventRouter<SourceRecord> router = new EventRouter<>();
                router.configure(under(all, name + ".router."));
                ways.add(new Way(name, router, converter(under(all, name + ".key."), true), converter(under(all, name + ".value."), false)));
            }
        }
        Properties properties = new Properties();
        properties.putAll(under(all, "engine."));
        DebeziumEngine<ChangeEvent<SourceRecord, SourceRecord>> engine = DebeziumEngine.create(Connect.class).using(properties)
                .using((success, message, error) -> {
                    if (!success) {
                        System.err.println(message);
                        if (error != null) {
                            error.printStackTrace();
                        }
                        System.exit(1);
                    }
                })
                .notifying(event -> {
                    for (Way way : ways) {
                        SourceRecord r = event.value();
                        r = r.newRecord(r.topic(), r.kafkaPartition(), r.keySchema(), r.key(), r.valueSchema(), r.value(), r.timestamp(), r.headers().duplicate());
                        r = way.router.apply(r);
                        if (r != null) {
                            print(out, way, r);
                        }
                    }
                }).build();
        ExecutorService running = Executors.newSingleThreadExecutor();
        running.execute(engine);
        while (System.in.read() >= 0) {
        }
        engine.close();
        System.exit(0);
    }

    private static void print(PrintStream out, Way way, SourceRecord r) {
        // Binary payloads have a converter for bytes, unless they are to stand in JSON.
        boolean binary = r.valueSchema() != null && r.valueSchema().type() == Schema.Type.BYTES && way.value instanceof org.apache.kafka.connect.storage.StringConverter;
        String value;
        try {
            value = text((binary ? bytes : way.value).fromConnectData(r.topic(), r.valueSchema(), r.value()));
        } catch (DataException e) { // which would end the connector's task
            System.err.println(e);
            value = "!";
        }
        StringBuilder line = new StringBuilder(way.name).append(' ').append(r.topic())
                .append(' ').append(text(way.key.fromConnectData(r.topic(), r.keySchema(), r.key()))).append(' ').append(value);
        for (Header h : r.headers()) {
            line.append(' ').append(h.key()).append(' ').append(text(headers.fromConnectHeader(r.topic(), h.key(), h.schema(), h.value())));
        }
        out.println(line);
        out.flush();
    }

    private static String text(byte[] of) {
        return of == null ? "-" : "=" + Base64.getEncoder().encodeToString(of);
    }

    private static Converter converter(Map<String, String> properties, boolean isKey) throws Exception {
        Converter made = (Converter) Class.forName(properties.get("converter")).getDeclaredConstructor().newInstance();
        Map<String, String> own = new HashMap<>();
        properties.forEach((name, value) -> own.put(name.replaceFirst("^converter\\.", ""), value));
        made.configure(own, isKey);
        return made;
    }

    private static Map<String, String> under(Properties all, String prefix) {
        Map<String, String> some = new HashMap<>();
        for (String name : all.stringPropertyNames()) {
            if (name.startsWith(prefix)) {
                some.put(name.substring(prefix.length()), all.getProperty(name));
            }
        }
        return some;
    }
}
